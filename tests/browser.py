"""A page in Chromium, without a window."""

import html
import re
import shutil
import subprocess
import unittest
from pathlib import Path

with_chromium = unittest.skipUnless(shutil.which("chromium"), "chromium is not installed")


def said_in(page: str, script: str, folder: Path, milliseconds: int = 0) -> str:
    """What a script put into the page says, run when it has loaded: it sets `said`, and may await. For one that takes time
    say how much: so much goes by for the page, and less for who waits."""
    path = folder / "page.html"
    path.write_text(page.replace("</body>", "<script>addEventListener('load', async () => { let said; try { " + script +
                                 " } catch (wrong) { said = `${wrong}` } document.title = said; });</script></body>"))
    budget = [f"--virtual-time-budget={milliseconds}"] if milliseconds else []
    result = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
         "--window-size=1200,800", *budget, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120)
    if result.returncode:
        raise AssertionError(result.stderr)
    return html.unescape(re.search(r"<title>(.*?)</title>", result.stdout, re.S)[1])
