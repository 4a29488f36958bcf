// decoding.h: other ways to choose the tokens that follow: speculation, beam search. It belongs to
// llama.c, which includes it after add_rows() and compute(), as beam search calls them.

// ---- speculation ------------------------------------------------------------------------------

// Prompt lookup (Saxena 2023): text repeats itself. Finds the last earlier place of the newest
// three tokens, or two, or one, and guesses that what followed them there follows here too.
static void guess(const Server *s, Request *r)
{
    int known = arrlen(r->tokens);
    int max = s->options.steps - known;
    if (max > s->options.drafts) max = s->options.drafts;
    for (int n = 3; n > 0 && max > 0; n--)
        for (int at = known - n - 1; at >= 0; at--) {
            if (memcmp(r->tokens + at, r->tokens + known - n, n * sizeof(int)) != 0) continue;
            for (int i = at + n; i < known && i < at + n + max; i++) arrput(r->draft, r->tokens[i]);
            return;
        }
}

// Samples after the last known token of a request, and after each guess that turned out right. What
// was computed for the other guesses is rewound. logits: [1 + guesses][vocab_size]. Returns 1 at
// the end of the text.
static int sample_request(Server *s, Request *r, const float *logits)
{
    int guesses = arrlen(r->draft);
    int right = 0;
    int ended;
    for (;; right++, logits += s->model.vocab_size) {
        int token = sample(logits, s->model.vocab_size, r->temperature, &r->rng);
        ended = token == BOS || arrlen(r->tokens) >= s->options.steps;
        if (token != BOS) arrput(r->tokens, token);
        if (ended || right == guesses || token != r->draft[right]) break;
    }
    s->num_accepted += right;
    if (guesses > right) must(seq_rewind(r->seq, guesses - right), "seq_rewind");
    return ended;
}

// ---- beam search ------------------------------------------------------------------------------
// The same pool, used in another way: every step forks the beams that go on and releases all the
// old ones. Beams of one family share the blocks of their common past, and only the last block is
// ever copied. One request at a time; its beams are the batch.

typedef struct Beam {
    Seq *seq;      // NULL once the text has ended
    int *tokens;   // an array of stb_ds
    double score;  // sum of the logarithms of the probabilities
    int parent;    // of a candidate: the beam that it continues
    int token;     // and how; BOS: not at all, its text has ended
} Beam;

// Puts a candidate into the list of the best `max`, which is sorted; of equals the first one stays.
static void offer(Beam **best, int max, Beam candidate)
{
    ptrdiff_t at = arrlen(*best);
    while (at > 0 && (*best)[at - 1].score < candidate.score) at--;
    if (at == max) return;
    if (arrlen(*best) == max) (void)arrpop(*best);
    arrins(*best, at, candidate);
}

// Lists the best continuations of all beams. logits: a row for each beam that has not ended.
static Beam *best_candidates(const Beam *beams, int max, const float *logits, int n)
{
    Beam *best = NULL;
    for (int b = 0; b < arrlen(beams); b++) {
        Beam candidate = {.score = beams[b].score, .parent = b, .token = BOS};
        if (!beams[b].seq) {
            offer(&best, max, candidate);
            continue;
        }
        double top = logits[argmax(logits, n)];
        double sum = 0;
        for (int i = 0; i < n; i++) sum += exp(logits[i] - top);
        for (int i = 0; i < n; i++) {
            candidate.score = beams[b].score + (logits[i] - top - log(sum));
            candidate.token = i;
            offer(&best, max, candidate);
        }
        logits += n;
    }
    return best;
}

// Makes a beam of a candidate: a fork of its parent.
static void take_candidate(Beam *beam, const Beam *parent)
{
    beam->tokens = copy_tokens(parent->tokens);
    if (beam->token == BOS) return;
    arrput(beam->tokens, beam->token);
    must(seq_fork(parent->seq, parent->seq->length, &beam->seq), "seq_fork");
}

static void release_beams(Beam *beams)
{
    for (int b = 0; b < arrlen(beams); b++) {
        seq_release(beams[b].seq);
        arrfree(beams[b].tokens);
    }
    arrfree(beams);
}

UNUSED static void beam_search(Server *s, Request *r)
{
    Beam *beams = NULL;
    arrput(beams, (Beam){.tokens = r->tokens});
    must(seq_create(s->pool, &beams[0].seq), "seq_create");
    for (;;) {
        clear_input(&s->input);
        for (int b = 0; b < arrlen(beams); b++)
            if (beams[b].seq && beams[b].seq->length < s->options.steps)
                must(add_rows(s, beams[b].seq, beams[b].tokens, NULL), "seq_append");
        if (arrlen(s->input.seqs) == 0) break;  // all have ended, or no positions are left
        const float *logits = compute(s);
        if (arrlen(s->input.wanted) == 0) continue;  // the prompt is not all in yet
        Beam *best = best_candidates(beams, s->options.beams, logits, s->model.vocab_size);
        for (int b = 0; b < arrlen(best); b++) take_candidate(&best[b], &beams[best[b].parent]);
        release_beams(beams);
        beams = best;
    }
    r->tokens = copy_tokens(beams[0].tokens);
    release_beams(beams);
}
