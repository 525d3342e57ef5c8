"""How settings are read and refused: dataclasses, pydantic, registries, folders of configs."""
