"""`wmt summary`, `publish`, `verify` and `compare` on finished runs; `join`, `unlock` on one at work; `ui`, `serve`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.common.files import output_file, read_yaml, write_text, writing
from nmt.common.processes import is_held
from nmt.errors import InputError
from nmt.task import TASKS, task_in
from pipeline.cli.repository import certificate_of, check_folder, check_lock, running_stage
from pipeline.config import paths, resolution, wording
from pipeline.config.locks import RWLOCK, mend_locks
from pipeline.config.paths import CONFIG, SCORES, read_json, state_root
from pipeline.config.rows import flat
from pipeline.tracking import server
from pipeline.trainings import launch

if TYPE_CHECKING:
    from pipeline.report.comparison import Compared

app = typer.Typer()

HERE = "."  # names the results in this folder
INTERVAL = 2.0  # seconds between two looks for the training to join
SERVE = "Do what `wmt ui` does, with a worker that runs Prefect's deployments. A second Ctrl-C ends it at once."


@app.command(rich_help_panel="Runs")
def summary() -> None:
    """Print the score of the finished run, its interval, name and time, where report and model are, what to try.

    \b
    Example:
      wmt summary
    """
    check_folder()
    scores = read_json(SCORES)
    configuration, verb = _settings_here() or read_yaml(CONFIG), task_in(scores).verb
    trained = f", trained in {wording.duration(scores['train_seconds'])}" if "train_seconds" in scores else ""
    print(f"{wording.summary(scores)}\nrun     {resolution.name(configuration)}{trained}")
    if stage := running_stage():
        print(f"        a newer run is at its stage {stage}: these results are of the run before")
    elif not _up_to_date():
        print("        the scores may be of earlier settings, files or code: `dvc repro` makes them anew")
    print(f"report  {paths.REPORT_HTML.absolute().as_uri()}\nmodel   {paths.AVERAGE}: wmt {verb} {paths.AVERAGE}")
    print(f"runs    {server.link(configuration['run']['pair']) or 'no MLflow'}: all side by side")
    print("next    open the report; `wmt rows` lists other models")


@app.command(rich_help_panel="Runs")
def unlock() -> None:
    """Remove locks of DVC that a killed process or a full disk left, if no process of DVC works in this folder.

    `make run` does so itself; `dvc repro` alone stops at them. Call it on the machine that ran DVC: it cannot see
    processes of other machines.

    \b
    Example:
      wmt unlock
    """
    check_folder()
    if not os.access(".", os.W_OK):
        raise InputError(f"{Path.cwd()} is read-only, for you or as a disk: runs write here; clone it elsewhere")
    if not mend_locks() and RWLOCK.exists() and '"pid"' in RWLOCK.read_text(encoding="utf-8", errors="replace"):
        print(f"unlock: {RWLOCK} stays: a process that it names works in this folder")


@app.command(rich_help_panel="Runs")
def publish() -> None:
    """Bring the MLflow run of the results in this folder to completeness. Doing it twice changes nothing.

    The pipeline does so itself after its last stage; this command completes what a server that was away has not taken.
    Trainings of this machine that were killed and that MLflow takes for running are set to KILLED.

    \b
    Example:
      wmt publish
    """
    check_folder()
    from pipeline.tracking import publish

    current = not SCORES.exists() or _up_to_date()
    if lines := "\n".join(publish.publish(current=current)):
        print(lines)
    if not current:
        why = "the results are not those of the present files (`dvc status` lists what differs), or DVC is at work"
        raise InputError(f"{why}: run `dvc repro`, then this")
    if not lines:
        print(f"nothing to publish: {SCORES} is not here, and no training was killed")


def _settings_here() -> dict[str, Any] | None:
    """Return the settings of the scores here, of which results/config.yaml may be newer; None before `certify`."""
    certificate = certificate_of(Path(), {SCORES: SCORES})
    return certificate and certificate["settings"]


def _up_to_date() -> bool:
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    from pipeline.stages import resolve

    check_lock()
    try:
        with Repo() as repo:
            changed = repo.status()
        return resolve.is_current(changed)
    except NotDvcRepoError:
        return True
    except DvcException:
        return False


@app.command(rich_help_panel="Runs")
def verify(
    updates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A:B", help="From the kept state before A to the link after B, not random ones; may be repeated."
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the updates that is trained again.")] = 0.01,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate; by default results/certificate.json.")
    ] = None,
) -> None:
    """Check the run in this folder, or a certificate, by running the pipeline again.

    Every stage up to the score, but training, runs again in a scratch folder. What it makes, and what is here, must
    have the hashes of the certificate. Of the training, parts are trained again from kept states, up to the next hash
    of its chain, and compared to the bit. Each step is recomputed, equal (by its hash alone), noted (other code),
    inconclusive (nothing to compare with) or differs. The exit status is 1 where a step differs, 2 where one is
    inconclusive, 0 if all is verified.

    \b
    Example:
      wmt verify
      wmt verify --updates 420:440 --updates 0:20
      wmt verify --certificate theirs.json
    """
    check_folder()
    if stage := running_stage():
        raise InputError(f"a run is at its stage {stage} in this folder: wait for its end")
    from pipeline.verify import check

    findings = []
    for finding in check.findings(certificate or paths.CERTIFICATE, updates or (), share):
        print(finding, flush=True)
        findings.append(finding)
    sentence, status = check.verdict(findings)
    print(sentence)
    raise typer.Exit(status)


@app.command(rich_help_panel="Runs")
def compare(
    first: Annotated[
        str, typer.Argument(metavar="RUN", help="The baseline: its name or id in MLflow, or DVC's that ran it.")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The other run's.")] = HERE,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("results/comparison.html"),
) -> None:
    """Compare two runs on each test set that they share, as a page: scores, paired bootstrap, settings, translations.

    The runs' own reports are copied beside it. MLflow lists names and ids; the beginning of an id is enough. `.` names
    the results in this folder.

    \b
    Example:
      wmt compare sample-sample-s2
      wmt compare 3f2a81c0 77b09d1e
    """
    check_folder()
    from pipeline.report import comparison, page

    target = output_file(output, CONFIG, SCORES, paths.SENTENCES, paths.VALIDATION, paths.REPORT_HTML)
    with tempfile.TemporaryDirectory() as folder:
        sets = (_compared(name, Path(folder, str(number))) for number, name in enumerate((first, second)))
        compared = [(*pair, comparison.difference(*pair)) for pair in comparison.shared(*sets)]
        one, other, gain = compared[0]
        rows = [comparison.by_set(*result) for result in compared] if "sets" in {**one.metrics, **other.metrics} else []
        reports = []
        for number, run in enumerate((one, other), start=1):
            if run.report.exists():
                copy = target.with_name(f"{target.stem}-run-{number}{target.suffix}")
                with writing(copy) as temporary:
                    shutil.copyfile(run.report, temporary)
                reports.append((copy.name, run.name))
        content = page.html(comparison.blocks(one, other, gain, reports, rows))
    write_text(target, content)
    difference = f"{gain.difference:+z.2f} {task_in(other.metrics).title}, p = {gain.p_value:.3f}"
    print(f"{other.name} against {one.name}: {difference} (paired bootstrap)")
    for name, before, after, gained, p in rows:
        print(f"  {name}: {before} to {after}, {gained}, p = {p}")
    print(f"page    {output}")


def _compared(name: str, folder: Path) -> list[Compared]:
    """Return the results of a run on each of its test sets, fetched into `folder` where they are not those here."""
    from pipeline.report import sentences
    from pipeline.report.comparison import Compared

    files = [CONFIG, SCORES, paths.SENTENCES, paths.VALIDATION, paths.REPORT_HTML]
    if name == HERE and (stage := running_stage()):
        raise InputError(f"a run is at its stage {stage} here: wait for its end, or name a run of MLflow")
    if name != HERE:
        name, files = server.fetch_artifacts(name, [path.name for path in files], folder)
    config, scores, lines, validation, report = files
    if not scores.exists():
        remedy = "finish it with `dvc repro`, then `wmt publish`, or choose another"
        raise InputError(f"the run {name} has no scores: {remedy}")
    metrics, configuration = read_json(scores), _settings_here() if name == HERE else read_yaml(config)
    if configuration is None:
        raise InputError(f"{SCORES} is of a run that is not finished: finish it with `dvc repro`, or name another run")
    read_json(scores, task_in(metrics).key)
    name = f"{resolution.name(configuration)} (here)" if name == HERE else name
    configuration.pop("attention", None)  # It decides no score, and certificates leave it out.
    settings, written = dict(flat(configuration)), sentences.read(lines)
    general = {key: value for key, value in metrics.items() if not key.startswith(tuple(task.key for task in TASKS))}
    compared = []
    for key, of_set in {"": {}, **metrics.get("sets", {})}.items():
        scores_of_set = general | of_set if of_set else metrics
        lines_of_set = [line for line in written if line.set == key]
        compared.append(Compared(name, settings, scores_of_set, lines_of_set, validation, report))
    return compared


@app.command("join", rich_help_panel="Runs")
def join() -> None:
    """Train as a further node with the machine that runs `dvc repro`; wait until its training begins.

    All machines share the state root and the repository, and set the same rendezvous: WMT_NODES=2
    WMT_RENDEZVOUS=first-machine:29400.

    \b
    Example:
      wmt join
    """
    check_folder()
    # Imported here: importing torch takes a second.
    from pipeline.trainings.folder import raise_if_refused
    from pipeline.trainings.identity import code_digest

    _, most, endpoint = launch.nodes()
    if most == 1:
        raise InputError("WMT_NODES is 1: set it and WMT_RENDEZVOUS as on the first node")
    print(f"join: waiting for a training in {state_root()} whose nodes meet at {endpoint}", flush=True)
    while (folder := _training_at(str(endpoint))) is None:
        time.sleep(INTERVAL)
    here = code_digest(read_yaml(folder / "job.yaml"))
    if folder.name.split("-")[1:2] != [here] and os.environ.get("WMT_RESUME_ACROSS_CODE") != "1":
        raise InputError(f"{folder.name} is trained with other code than this machine has: check out the first node's")

    def watch() -> None:
        raise_if_refused(folder)
        if (folder / "interrupted").exists():
            raise InputError("the training was asked to stop; start it again on the first node, then join again")

    raise typer.Exit(launch.torchrun(folder, watch))


def _training_at(endpoint: str) -> Path | None:
    """Return the folder of the training whose first node runs and meets the others at `endpoint`."""
    for path in (state_root() / "train").glob(f"*/{launch.RENDEZVOUS}"):
        # The file stays when its training ends; the lock does not.
        if path.read_text(encoding="utf-8") == endpoint and is_held(path.with_name("lock")):
            return path.parent
    return None


@app.command("serve", rich_help_panel="Services", help=f"{SERVE}\n\n\b\nExample:\n  wmt serve")
@app.command(rich_help_panel="Services")
def ui(context: typer.Context) -> None:
    """Start MLflow and Prefect's server on this machine's loopback, for one person. Ctrl-C ends both.

    $MLFLOW_PORT and $PREFECT_PORT set other ports than 5000 and 4200. Both ask for one password, a new one at each
    start; Prefect's commands in this environment read it from a file.

    \b
    Example:
      wmt ui
    """
    check_folder()
    from pipeline.flows import services

    services.serve(worker=context.info_name == "serve")
