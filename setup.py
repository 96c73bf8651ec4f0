"""The model zoo stands beside the package in a checkout, and inside it once installed; all else is in pyproject.toml.

`packages.find` of pyproject.toml cannot name a package that lies elsewhere, hence this file.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["snncompress*"]), "snncompress.model_zoo"],
    package_dir={"snncompress.model_zoo": "model_zoo"},
)
