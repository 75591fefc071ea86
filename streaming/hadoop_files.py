"""Small files on any file system that Spark reaches."""

from typing import Any

from pyspark.sql import SparkSession


class HadoopFiles:
    """Those below one root, which decides the file system."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        assert spark._jvm is not None and spark._jsc is not None
        self._jvm = spark._jvm
        self._files = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self, folder: str) -> list[str]:
        """Empty also where there is no such folder."""
        if not self._files.exists(self._path(folder)):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._path(folder))]

    def read(self, file: str) -> str | None:
        """None when it is not there."""
        if not self._files.exists(self._path(file)):
            return None
        stream = self._files.open(self._path(file))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, file: str, text: str) -> bool:
        """Atomic: written beside and renamed. False when it can't be."""
        beside = self._path(f"{file}.new")
        stream = self._files.create(beside, True)
        stream.write(text.encode())
        stream.close()
        return bool(self._files.rename(beside, self._path(file)))

    def delete(self, file: str) -> None:
        self._files.delete(self._path(file), False)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)
