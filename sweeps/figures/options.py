"""Options that several figures take."""

from collections.abc import Sequence


def queries(given: Sequence[str]) -> list[int]:
    """Numbers of queries from words such as "1,3,5,10"; `ValueError` for anything else."""
    words = [word for part in given for word in part.split(",") if word]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise ValueError(f"queries = {','.join(given)!r}: must be different integers >= 1")
    return numbers
