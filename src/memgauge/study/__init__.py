"""Studies: many trials, each in a process of its own, and what their memory depends on.

file      the study as it is written: TOML, validated                    (what the user wants)
space     parameters, conditions, levels
design    which points of the space are tried
plan      points → trials, each a training or a TARGET with arguments; which are new, in which order
ledger    every trial and what became of it: Optuna, SQLite or PostgreSQL (what is known)
forecast  data, baselines and estimates before anything runs; `predict` asks the process that estimates
runner    the way through: plan, resume, start, harvest, tell
order     what an executor is told of a trial; `local` and `on_ray` are the executors
process   one trial = one fresh process under the monitor, ended at its limits
trial     what runs in that process
harvest   from a run file and a result to the record of a trial
isolation baselines, background load
analysis  what drives the memory: fANOVA, ANOVA, regression, in words      (what it means)
"""
