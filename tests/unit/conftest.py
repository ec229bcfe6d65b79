"""No law of these tests is about time: another job may hold the core."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
