"""The one exception that a user's mistake raises: its message is the whole answer, one clear sentence."""


class UserError(Exception):
    """Something the user can put right; the command line prints it and exits with code 2."""
