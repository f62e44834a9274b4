"""llama.cpp as a pinned prebuilt binding from PyPI: what native.py does with a build for this machine."""


class Model:
    def __init__(self, path):
        import cyllama.llama.llama_cpp as llama

        # Reading logits, this version of the binding asks the model for `n_vocab`, which only its vocabulary has.
        class WithVocabulary(llama.LlamaModel):
            n_vocab = 0

        llama.disable_logging()
        params = llama.LlamaModelParams()
        params.n_gpu_layers = 0
        self.llama = llama
        self.model = WithVocabulary(str(path), params)
        self.words = self.model.get_vocab()
        count = self.words.n_vocab
        WithVocabulary.n_vocab = self.vocabulary = count() if callable(count) else count
        self.beginning = self.words.token_bos() if self.words.get_add_bos() else None

    def tokenize(self, text):
        return list(self.words.tokenize(text, True, False))

    def open(self, size, threads, cache_type, flash, batch):
        params = self.llama.LlamaContextParams()
        params.n_ctx = size
        params.n_batch = batch
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = cache_type
        params.flash_attn_type = int(flash)
        return Context(self.llama, self.llama.LlamaContext(self.model, params))


class Context:
    def __init__(self, llama, context):
        self.llama, self.context = llama, context

    def read(self, ids, position, every_logit=False):
        batch = self.llama.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(ids, position, every_logit)
        if not every_logit:
            batch.set_last_logits_to_true()
        self.context.decode(batch)

    def logits(self, index):
        import numpy

        return numpy.asarray(self.context.get_logits_ith(index), dtype=numpy.float64)

    def set_threads(self, threads):
        self.context.set_n_threads(threads, threads)

    def synchronize(self):
        self.context.synchronize()

    def held(self):
        return self.context.memory_seq_pos_max(0) + 1

    def forget(self, position):
        if self.context.memory_seq_rm(0, position, -1):
            return True
        self.context.kv_cache_clear()
        return False
