"""Hold the stages of dvc.yaml: one module each, with one function `run`.

A new stage needs:

- an entry in dvc.yaml before `report`, which depends on its outputs: after the last stage MLflow's run is completed,
  and flows run what the last one needs; with `meta: gpu: true` if it imports the trainer or the decoder;
- its paths in pipeline/config/paths.py and, outside of models and results, in .gitignore, infra/Dockerfile.dockerignore
  and `clean` of the Makefile; their size in pipeline/trainings/cost.py;
- for settings: a class in pipeline/config/sections.py, a field in pipeline/config/settings.py, values in `base` of
  pipeline/config/rows.yaml. If they decide results, the section's name in `SECTIONS` of sections.py and in the `params`
  of certify and report in dvc.yaml; if not, in `OVERRIDABLE` of pipeline/config/resolution.py;
- for a library that decides bytes of its outputs: `VersionSettings` in sections.py, `check_versions` in `run`, and the
  `params` of the stage;
- to be checked by `wmt verify`: a place before certify, its outputs among certify's `deps`, and a `run` without
  arguments (`arguments_of` in pipeline/__main__.py has the others').

Like a new setting of `SECTIONS` or a new score, it makes data/certificates stale. Each has the `params` by which to
make it again; README.md has their scores and the weights of the first.
"""
