"""Many runs: how they are made, read, compared and reported. Nothing is imported until it is used."""
