"""What holds for every law: it is checked on examples, never on how long one takes."""

from hypothesis import settings

settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
