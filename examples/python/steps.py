"""Trains on a text step by step and ends the run when the loss is low enough.

    python3 steps.py book.txt runs/book
"""
import sys

import thimble


def main(data: str, output: str) -> None:
    settings = dict(layers=2, dim=64, heads=2, context=64, batch_tokens=1024, steps=200, val_every=50)
    with thimble.Training(data, output=output, config=settings) as training:
        for event in training:
            if isinstance(event, thimble.Validation):
                print(f'step {event.step}: {event.loss:.3f} nats per token')
            elif isinstance(event, thimble.Step) and event.step % 100 == 0:
                training.save()  # a checkpoint besides those of validations
            elif isinstance(event, thimble.Step) and event.loss < 0.5:
                break
        run = training.stop()
    print(run)
    print(run.model.generate('the', max_tokens=40, temperature=0).text)


if __name__ == '__main__':
    main(*sys.argv[1:])
