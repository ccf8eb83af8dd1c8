"""Colours and dashes of the algorithms: Okabe and Ito's palette, which colour-blind readers can tell apart."""

# On white and on a dark page. The palette's yellow is too faint on white, and its black is the page's own ink.
COLOURS = (
    ("#0072b2", "#4aa8e0"),  # blue
    ("#d55e00", "#ef8a3c"),  # vermilion
    ("#009e73", "#2fc49a"),  # bluish green
    ("#a8508a", "#e09ac6"),  # reddish purple, darker on white so that thin lines are seen
    ("#b87d00", "#e69f00"),  # orange, likewise
    ("#2a93cc", "#8fd0f5"),  # sky blue, likewise
    ("#333333", "#d8d8d8"),  # ink
)
DASHES = ("", "6 3", "2 3")  # for more algorithms than colours


def style_of(number: int) -> tuple[int, int]:
    """Colour and dash of the number-th algorithm."""
    return number % len(COLOURS), number // len(COLOURS) % len(DASHES)
