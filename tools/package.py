"""Builds the package and tries it as users install it.

    python tools/package.py            # build, install, run, licences, SBOM
    python tools/package.py --matrix   # and a part of the tests on the least and the newest versions

Wheel and sdist are built twice and must be equal to the byte. Each is installed into an empty environment, where the
command answers from an empty folder. `build/package` then holds both files, `licences.md` and `sbom.json` (CycloneDX).
The matrix has the least versions that `pyproject.toml` allows on the Python that runs this script, and the newest
versions on the newest Python that is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "build/package"
TOOLS: Final = ("build>=1.2", "hatchling>=1.25", "cyclonedx-bom>=5", "pip-audit>=2.7")
TESTS: Final = ("tests/unit/basics", "tests/unit/cli", "tests/unit/inputs", "tests/golden")
"""The tests of the matrix: the border to the user's files and the command line, and timelines worked out by hand."""
TEST_PACKAGES: Final = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "perfetto>=0.12", "orjson>=3.9")
NEWEST: Final = ("3.14", "3.13", "3.12")
QUESTION: Final = ("predict", "gpt2", "--gpus", "8", "--gbs", "8", "--cluster", "h100-dgx", "--json")

PROBE: Final = """
import json
from importlib.metadata import distributions
print(json.dumps([[d.metadata["Name"], d.version, d.metadata.get("License-Expression") or "",
    d.metadata.get("License") or "", d.metadata.get_all("Classifier") or []] for d in distributions()]))
"""


def run(*words: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Runs a command and returns what it prints; ends the script with the command's output where it fails."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}\nfailed with exit code {done.returncode}")
    return done.stdout


def environment(folder: Path, packages: Iterable[str | Path], python: str = sys.executable) -> Path:
    """Makes an environment with these packages; returns the path of its Python."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "-qq", "--disable-pip-version-check", "install", *packages)
    return folder / "bin/python"


def build(python: Path, folder: Path) -> dict[str, Path]:
    """Builds sdist and wheel from the files that git knows; returns them by ending."""
    source, out = folder / "source", folder / "dist"
    names = run("git", "ls-files", "-z").split("\0")[:-1]
    for name in names:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    stamp = run("git", "log", "-1", "--format=%ct").strip()
    run(python, "-m", "build", "--no-isolation", "--outdir", out, folder=source, SOURCE_DATE_EPOCH=stamp)
    return {"".join(path.suffixes[-2:]) if path.name.endswith(".gz") else path.suffix: path for path in out.iterdir()}


def digests(files: dict[str, Path]) -> dict[str, str]:
    """Returns the SHA-256 of each file."""
    return {ending: hashlib.sha256(path.read_bytes()).hexdigest() for ending, path in files.items()}


def try_command(python: Path, folder: Path) -> None:
    """Asks the installed command a question from an empty folder, as a user would."""
    folder.mkdir()
    answer = json.loads(run(python.parent / "foretrace", *QUESTION, folder=folder))
    if not answer["step_time_s"] > 0 or any(folder.iterdir()):
        sys.exit("the installed command gives no step time, or leaves files behind")


def licences(python: Path) -> list[tuple[str, str]]:
    """Returns the distributions of an environment with their licences as they state them."""
    rows = []
    for name, _, expression, text, classifiers in json.loads(run(python, "-c", PROBE)):
        classified = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
        licence = expression or "; ".join(classified) or text.partition("\n")[0][:60] or "not stated"
        if name not in ("pip", "setuptools", "wheel"):
            rows.append((name, licence))
    return sorted(rows, key=lambda row: row[0].lower())


def least_versions(project: dict[str, Any]) -> list[str]:
    """Returns the core dependencies pinned to the least versions that the project allows."""
    pins = []
    for requirement in project["dependencies"]:
        name, least = re.match(r"([\w-]+)>=([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        pins.append(f"{name}=={least}.*")
    return pins


def newest_python() -> str | None:
    """Returns the newest Python that is installed and that is newer than this one."""
    for version in NEWEST:
        homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for candidate in (shutil.which(f"python{version}"), *map(str, homes)):
            if candidate and not subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode:
                return candidate
    return None


def run_tests(python: Path, what: str, folder: Path) -> None:
    """Runs a part of the tests on an environment, against the installed package; `folder` takes temporary files."""
    versions = run(python, "-c", "import sys, numpy; print(sys.version.split()[0], 'numpy', numpy.__version__)").strip()
    run(python, "-m", "pytest", "-n", "2", "--basetemp", folder, *TESTS)
    print(f"{what:<8} Python {versions}: {len(TESTS)} folders of tests pass", flush=True)


def main() -> None:
    """Builds, installs and tries the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="store_true", help="also test the least and the newest versions")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tools = environment(folder / "tools", TOOLS)
        first, second = build(tools, folder / "first"), build(tools, folder / "second")
        if digests(first) != digests(second):
            sys.exit("two builds of one commit differ")
        for ending, path in first.items():
            python = environment(folder / f"try{ending}", [path])
            try_command(python, folder / f"empty{ending}")
            shutil.copy2(path, OUT)
            print(f"{path.name}: {path.stat().st_size:,} bytes, reproducible, installs and answers", flush=True)
        wheel = first[".whl"]
        full = environment(folder / "full", [f"{wheel}[fast]"])
        rows = "".join(f"| {name} | {licence} |\n" for name, licence in licences(full))
        (OUT / "licences.md").write_text(f"| package | licence |\n| --- | --- |\n{rows}")
        run(tools.parent / "cyclonedx-py", "environment", full, "-o", OUT / "sbom.json")
        print(f"licences.md, sbom.json: {rows.count(chr(10))} packages", flush=True)
        audit(tools, full)
        if options.matrix:
            run_tests(
                environment(folder / "least", [wheel, *least_versions(project), *TEST_PACKAGES]),
                "least",
                folder / "tests",
            )
            newest = newest_python()
            if newest is None:
                print("newest   no Python newer than this one is installed: not tested")
            else:
                packages = [f"{wheel}[fast]", *TEST_PACKAGES]
                run_tests(environment(folder / "newest", packages, newest), "newest", folder / "tests")


def audit(tools: Path, python: Path) -> None:
    """Looks the packages up among known vulnerabilities, where the service that lists them can be reached."""
    words = [tools.parent / "pip-audit", "--progress-spinner", "off", "-f", "json", "--path", _site(python)]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=120)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    audited = [package for package in packages if "vulns" in package]
    if not audited:
        print("pip-audit: the list of vulnerabilities cannot be reached from here: not audited")
        return
    bad = [package["name"] for package in audited if package["vulns"]]
    print(f"pip-audit: {len(audited)} packages audited, {len(bad)} with known vulnerabilities {' '.join(bad)}")
    if bad:
        sys.exit(1)


def _site(python: Path) -> str:
    return run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()


if __name__ == "__main__":
    main()
