"""Small files on any file system that Spark reaches."""

from typing import Any

from pyspark.sql import SparkSession

from lake.java import java_class


class HadoopFiles:
    """Those below one root, which decides the file system."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        assert spark._jsc is not None
        self._new_path = java_class(spark, "org.apache.hadoop.fs.Path")
        self._streams = java_class(spark, "org.apache.commons.io.IOUtils")
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
            return str(self._streams.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, file: str, text: str) -> None:
        """Atomic: written beside and renamed. The file must not be there yet: not every file system replaces one."""
        beside = f"{file}.new"
        stream = self._files.create(self._path(beside), True)
        stream.write(text.encode())
        stream.close()
        self.move(beside, file)

    def touch(self, file: str) -> None:
        """Makes an empty file, or empties it."""
        self._files.create(self._path(file), True).close()

    def move(self, file: str, to: str) -> None:
        """Makes the folders above. Raises where it can't be moved."""
        self._files.mkdirs(self._path(to).getParent())
        if not self._files.rename(self._path(file), self._path(to)):
            raise OSError(f"{file} can't be moved to {to}: check the rights and the room there.")

    def delete(self, file: str) -> None:
        self._files.delete(self._path(file), False)

    def delete_folder(self, folder: str) -> None:
        """With all that is in it."""
        self._files.delete(self._path(folder), True)

    def _path(self, path: str) -> Any:
        return self._new_path(path)
