"""What holds for every test."""

import hypothesis

# A shared machine may stop for longer than Hypothesis allows an example; pytest's timeout still holds.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")
