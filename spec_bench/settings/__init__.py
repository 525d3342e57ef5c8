"""Reading and validation of settings: dataclasses, pydantic, registries, folders of configs."""
