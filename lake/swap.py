"""Puts other files in the place of those that a table has, in one commit that reads and writes no rows."""

import json
from collections.abc import Collection
from urllib.parse import unquote

from pyspark.sql import SparkSession

from lake.commit import noted
from lake.delta_api import DELTA, delta_log, files_where, overwrite, sequence, versions_of
from lake.java import java_class
from lake.tables import Table


class FilesRewritten(Exception):
    """Files that were to be replaced are not there any more."""


def files_of(spark: SparkSession, table: Table, lake_root: str) -> list[str]:
    """All files of the table as a commit adds them: JSON, with paths below the table's folder."""
    transaction = delta_log(spark, table, lake_root).startTransaction()
    files = [json.loads(file.json()) for file in files_where(spark, transaction, None)]
    # Those that a table has count as old; what is added changes it.
    return [json.dumps({"add": {**file["add"], "dataChange": True}}) for file in files]


def paths_where(spark: SparkSession, table: Table, lake_root: str, where: str | None) -> list[str]:
    """The files of all rows for which a condition on the table's partitions holds; all files without one."""
    transaction = delta_log(spark, table, lake_root).startTransaction()
    return [file.path() for file in files_where(spark, transaction, where)]


def path_of(file: str) -> str:
    """Below the table's folder."""
    return unquote(json.loads(file)["add"]["path"])


def replace_files(
    spark: SparkSession,
    table: Table,
    lake_root: str,
    where: str | None,
    old: Collection[str],
    files: Collection[str],
    swap: str,
) -> None:
    """Takes away the files with the paths `old`, which are of the rows `where` says, and adds `files`, which have to be
    in the table's folder. Does nothing where this `swap` was done.

    Call it with the table's lock held.
    """
    transaction = delta_log(spark, table, lake_root).startTransaction()
    if swap in versions_of(transaction.snapshot()):
        return
    gone = set(old)
    removed = [file for file in files_where(spark, transaction, where) if file.path() in gone]
    if len(removed) < len(gone):
        raise FilesRewritten(
            f"{len(gone) - len(removed)} files of {table.name} that {swap} was to replace have been rewritten since. "
            "Restore the table to the version before that, and the swap is completed by itself."
        )
    action = java_class(spark, f"{DELTA}.actions.Action")
    added = [action.fromJson(file) for file in files]
    actions = [*(file.remove() for file in removed), *added, noted(spark, swap, 0)]
    transaction.commit(sequence(spark, actions), overwrite(spark, where))
