// Formulas and tables that are wider than the page are scrolled by keys once they can be reached by
// them. Those that fit are not in the way of the Tab key.
function reachable() {
  for (const each of document.querySelectorAll("div.math, .table-wrapper")) {
    if (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight) {
      each.tabIndex = 0;
    } else {
      each.removeAttribute("tabindex");
    }
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
