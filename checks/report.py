"""What the checks in Python share: they count, and end with "N passed, N failed, N skipped"."""
counts = {'passed': 0, 'failed': 0, 'skipped': 0}


def report(name, problems=(), skipped=''):
    """Says of a check that it found no problem, or which ones, or why it could not look."""
    if skipped:
        counts['skipped'] += 1
        print('skip  %s: %s' % (name, skipped), flush=True)
    elif problems:
        counts['failed'] += 1
        print('FAIL  ' + name, flush=True)
    else:
        counts['passed'] += 1
        print('ok    ' + name, flush=True)
    for problem in problems[:5]:
        print('  ' + problem.rstrip().replace('\n', '\n  '), flush=True)


def finish():
    """Prints the sum. Returns the exit status."""
    print(', '.join('%d %s' % (number, state) for state, number in counts.items()))
    return counts['failed'] > 0
