"""MLflow: one run for each configuration and training, followed while it trains and completed from its results.

The model registry and the model as it is served are here, too.

No other package imports MLflow, and there is no interface for other servers: the others call functions of `follow`,
`publish`, `server` and `source`. pipeline/flows/services.py starts MLflow's server for one person, infra/compose.yaml
for a team; infra/prefect.yaml and infra/kubernetes/shared/kustomization.yaml name its address. browser_model.py and
chapters.py of pipeline/report tell readers what MLflow has.
"""
