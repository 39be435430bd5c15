"""What ``--help`` prints: plain text, so that it shows at once."""

from __future__ import annotations

OVERVIEW = """\
usage: headlab VERB [--flag value | key=value] ...

Train a Transformer translation model, prune its attention heads to exact counts, tabulate BLEU against heads.

  data              fetch, clean, split and cut a corpus into pieces
  train             train a base model
  prune             prune a base model's heads; trains the base first when there is none
  sweep             prune with every combination of lists of values, in processes side by side
  evaluate RUN      translate and score the test set with the model of a run
  translate RUN     translate the lines of standard input
  report EXPERIMENT make the tables and figures of results/EXPERIMENT again
  validate          check a configuration, show all its errors at once, print it resolved

Flags and key=value may be mixed in any order: --target 10 and prune.target=10 are the same, and
--a.b value is a.b=value for every key. `headlab VERB --help` tells more, `headlab validate` shows all keys.

Exit codes: 0 done, 2 the input is wrong, 1 it could not be finished, 130 and 143 interrupted (work is kept).

examples:
  headlab prune --target 10
  headlab prune experiment=en_ru
"""

_MACHINE = """\
  --device D          auto, cpu or cuda               --precision P   auto, fp32, bf16 or fp16
  --threads N         CPU threads                     --devices N     processes, one GPU each
  --jobs N            runs side by side, which share the threads (default on a CPU: as many, 4 at most)
"""

_BASE = """\
  --data NAME         corpus: {data}
  --model NAME        shape: tiny, small (default) or base; single values as model.dim=64
  --optim NAME        training: tiny, small (default) or base; single values as optim.updates=500
  --seed N            of the model and the order of its data (default 1)
  --runs-dir DIR      where run directories go (default runs)
  --keep-checkpoints  leave fairseq's checkpoints when a stage is complete
"""

_CORPORA = "en_ru (default), en_de, de_en, en_fr, en_it, it_en, files"

VERBS = {
    "data": f"""\
usage: headlab data [--flag value | key=value] ...

Fetch a corpus, clean it, split it into train, valid and test without overlap, learn SentencePiece pieces
and encode it. Prints what was read and dropped and why, and five pairs. Done once per setting.

  --data NAME         {_CORPORA}
  --runs-dir DIR      where the result goes (default runs)
  data.pieces=N       size of the vocabulary that both languages share (default 4000)
  data.valid_size=N   sentences held out for choices (default 800)
  data.test_size=N    sentences held out for scores (default 2000)
  data.seed=N         of the split

Your own aligned text, one sentence a line, plain or .gz, named as corpus/train.en and corpus/train.ru:
  data=files  data.source_lang=en  data.target_lang=ru
  data.files.train=corpus/train  data.files.valid=corpus/valid  data.files.test=corpus/test

examples:
  headlab data
  headlab data --data en_de data.pieces=8000
""",
    "train": f"""\
usage: headlab train [--flag value | key=value] ...

Train a base model, the one that pruning starts from, or with --method gha a group-constrained one. Prepares
its data first. An interrupted training goes on from its last checkpoint, a finished one is not repeated.

{_BASE.format(data=_CORPORA)}{_MACHINE}
  optim.updates=N     length of the training          optim.lr=X      peak of the learning rate
  optim.batch_tokens=N  tokens in a batch             optim.warmup=N  updates until the peak

examples:
  headlab train
  headlab train --model tiny --optim tiny --seed 2
""",
    "prune": f"""\
usage: headlab prune [--flag value | key=value] ...

Prune a base model to exactly N attention heads, remove the others for good, fine-tune what is left, score
it against an unpruned control of equal updates and write rows, tables and figures to results/.

  --target N          heads to keep within the scope, or
  --targets N,N,...   several counts in one run, or
  --penalty X         method l0 with a fixed penalty: the number of heads is what comes out
  --method NAME       how heads get their scores: l0 (default), gha, dsp; without training: gradient, confidence,
                      lrp, magnitude, random, leave-one-out (slow)
  --scope KIND,...    which heads may go: enc-self (default; of gha and dsp all), dec-self, enc-dec
  --controls C,...    models to compare with: control (default), ght, scratch, lite1, lite2
  --seeds N,N,...     several seeds side by side; tables have their means and standard deviations
  --base RUN          start from the base of this run directory instead of training one
  --experiment NAME   a whole setting that fills results/NAME: en_ru, ght, smoke, ...
{_BASE.format(data=_CORPORA)}{_MACHINE}
  prune.selection_updates=N  per target               prune.finetune_updates=N  after removal
  prune.untuned=true  a row of every pruned model before its fine-tuning too

examples:
  headlab prune --target 10
  headlab prune --method gha --target 36
""",
    "sweep": f"""\
usage: headlab sweep [--dry-run] [--flag value | key=value with lists] ...

Run headlab prune for every combination of the lists in its overrides, each in a process of its own, and make
table and figures once at the end. `headlab prune -m` is the same, `headlab train -m` sweeps over trainings.
A base or control that several need is trained once, before them; what is finished is skipped. If one fails,
the others go on; it is listed at the end with its log, and the exit code is 1. A stopped sweep goes on where
it was when it is started again.

  key=a,b             one value after the other       key=range(1,4)   1, 2, 3
  key=glob(en_*)      files of a group                key=[a,b]        one value that is a list, no sweep
  --dry-run           print cells, stages, time (20 updates are measured here) and disk, and stop
  --experiment NAME   an experiment may have lists of its own (sweep in its file): compare_en_ru;
                      a list given beside it, as seed=1, takes the place of its own
  launcher.parallel=N cells at once, which share the threads (default on a CPU: one a thread, 4 at most)
  launcher=slurm      every cell a job of SLURM: launcher.partition=P  launcher.time=MINUTES
                      launcher.gpus=N  launcher.cpus=N
{_MACHINE}
Takes the other flags and keys of prune.

examples:
  headlab sweep method=l0,random seed=1,2 --target 10
  headlab sweep --experiment compare_en_ru seed=1 --dry-run
""",
    "evaluate": f"""\
usage: headlab evaluate RUN [--flag value | key=value] ...

Translate the test set with the model of a finished run directory and print BLEU and chrF with their
signatures, the heads it has, its parameters, FLOPs and speed.

  RUN                 a directory under runs/ with a DONE file
  --beam N            width of the beam search (default: as in the run)
  score.lenpen=X      length penalty                  score.batch_sentences=N  sentences at once
{_MACHINE}
examples:
  headlab evaluate runs/pruned/en_ru-l0-10-0123abcd
  headlab evaluate runs/pruned/en_ru-l0-10-0123abcd --beam 1 --device cpu
""",
    "translate": f"""\
usage: headlab translate RUN [--flag value | key=value] ... < text

Translate standard input, one UTF-8 sentence a line, with the model of a finished run directory; the
translations go to standard output, one a line, in the same order, and everything else to standard error.

  RUN                 a directory under runs/ with a DONE file
  --beam N            width of the beam search (default: as in the run)
  score.lenpen=X      length penalty                  score.batch_sentences=N  sentences at once
{_MACHINE}
examples:
  headlab translate runs/pruned/en_ru-l0-10-0123abcd < input.en > output.ru
  echo "Turn off the light." | headlab translate runs/pruned/en_ru-l0-10-0123abcd --beam 1
""",
    "report": """\
usage: headlab report EXPERIMENT [--results-dir DIR]

Make the tables (Markdown, LaTeX) and figures of an experiment again from the rows recorded in its folder.
Trains nothing, and needs neither torch nor fairseq.

  EXPERIMENT          a folder of results/ with a rows.csv in it
  --results-dir DIR   where the folders of results are (default results)

examples:
  headlab report en_ru
  headlab report smoke --results-dir results
""",
    "validate": """\
usage: headlab validate [--flag value | key=value] ...

Compose a configuration as prune would, check every value, print all errors at once, one a line, or else the
whole resolved configuration as YAML. Runs nothing.

Takes the flags and keys of every other verb:
  --experiment NAME, --data NAME, --model NAME, --optim NAME, --method NAME   choose a file of conf/
  key=value                                                                    sets one value on top
  --base RUN                                                                   takes data, model, optim of a run

examples:
  headlab validate experiment=en_ru
  headlab validate --model base optim.lr=0.001 --scope enc-self,enc-dec
""",
}
