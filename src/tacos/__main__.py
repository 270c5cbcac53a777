"""``python -m tacos`` is the command ``tacos``."""

from __future__ import annotations

import sys

from tacos.cli import main

sys.exit(main())
