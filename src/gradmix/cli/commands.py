"""All commands."""

from __future__ import annotations

import typer

from gradmix.cli.demo import demo
from gradmix.cli.doctor import doctor
from gradmix.cli.export import export
from gradmix.cli.forget import forget
from gradmix.cli.inspect import inspect
from gradmix.cli.learn import learn
from gradmix.cli.list import list_all
from gradmix.cli.predict import predict
from gradmix.cli.report import report
from gradmix.cli.reproduce import reproduce
from gradmix.cli.results import results
from gradmix.cli.run import run
from gradmix.cli.serve import serve
from gradmix.cli.settings import ManyValues, general_options
from gradmix.cli.shard import shard
from gradmix.cli.sweep import sweep

app = typer.Typer(
    help="Class-incremental learning with gradient-based selective mixup.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.callback()(general_options)
app.command()(learn)
app.command()(predict)
app.command()(inspect)
app.command()(forget)
app.command()(export)
app.command()(serve)
app.command()(shard)
app.command(cls=ManyValues)(run)
app.command(cls=ManyValues)(sweep)
app.command(cls=ManyValues)(results)
app.command(cls=ManyValues)(reproduce)
app.command()(report)
app.command()(demo)
app.command(name="list", cls=ManyValues)(list_all)
app.command()(doctor)
