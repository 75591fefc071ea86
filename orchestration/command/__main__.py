from orchestration.command import tidewatch

if __name__ == "__main__":
    tidewatch(prog_name="tidewatch")
