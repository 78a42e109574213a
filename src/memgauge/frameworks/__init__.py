"""The only place that imports frameworks (with `monitor`): how a run is traced and really run."""
