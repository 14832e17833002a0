"""What theory says of the words of a text, with classes estimated from it."""
