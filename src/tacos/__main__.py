"""``python -m tacos`` is the command ``tacos``."""

from __future__ import annotations

import sys

from _tacos import main

sys.exit(main())
