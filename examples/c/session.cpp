// Steps with logits, a fork, a file, and a generation that another thread stops: ./session model.gguf FILE
#include <kvant.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// A handle that frees itself, and statuses as exceptions.
template <auto Free> struct Freed {
    template <class T> void operator()(T *handle) const { Free(handle); }
};
using Engine = std::unique_ptr<kvant_engine, Freed<kvant_engine_free>>;
using Session = std::unique_ptr<kvant_session, Freed<kvant_session_free>>;
using Reply = std::unique_ptr<kvant_reply, Freed<kvant_reply_free>>;

static void check(kvant_status status) {
    if (status != KVANT_STATUS_OK) throw std::runtime_error(kvant_error_message());
}

static Session start(const Engine &engine) {
    kvant_session *session = nullptr;
    check(kvant_session_new(engine.get(), &session));
    return Session(session);
}

// The most likely tokens, one by one.
static std::vector<uint32_t> steps(const Session &session, const std::vector<uint32_t> &prompt, size_t count) {
    const float *logits = nullptr;
    size_t length = 0;
    check(kvant_session_prefill(session.get(), prompt.data(), prompt.size(), &logits, &length));
    std::vector<uint32_t> chosen;
    while (chosen.size() < count) {
        chosen.push_back(static_cast<uint32_t>(std::max_element(logits, logits + length) - logits));
        check(kvant_session_step(session.get(), chosen.back(), &logits, &length));
    }
    return chosen;
}

static void run(const char *model, const char *file) {
    kvant_engine *opened = nullptr;
    check(kvant_engine_open(model, nullptr, &opened));
    Engine engine(opened);

    std::vector<uint32_t> prompt(64);
    size_t count = 0;
    check(kvant_engine_tokenize(engine.get(), "The sky is", KVANT_TOKENIZE_ADD_SPECIAL, prompt.data(), prompt.size(), &count));
    prompt.resize(count);
    Session session = start(engine);
    std::vector<uint32_t> first = steps(session, prompt, 8);

    // A fork goes its own way, and shares what both have read.
    kvant_session *copy = nullptr;
    check(kvant_session_fork(session.get(), &copy));
    Session fork(copy);
    check(kvant_session_step(fork.get(), 7, nullptr, nullptr));

    // What was read can be gone on with later, in another session or another process.
    check(kvant_session_save(session.get(), file));
    Session later = start(engine);
    check(kvant_session_resume(later.get(), file, nullptr));
    size_t held = 0;
    check(kvant_session_size(later.get(), &held, nullptr));
    std::printf("%zu tokens were saved; the same again: %s\n", held, steps(later, prompt, 8) == first ? "yes" : "no");

    // Another thread stops a generation that would go on.
    std::thread stopper([&] { kvant_session_cancel(session.get()); });
    kvant_reply *made = nullptr;
    check(kvant_session_generate(session.get(), prompt.data(), prompt.size(), nullptr, nullptr, nullptr, &made));
    Reply reply(made);
    stopper.join();
    kvant_reply_info info{};
    info.struct_size = sizeof info;
    check(kvant_reply_describe(reply.get(), &info));
    std::printf("stopped: %s\n", info.finish == KVANT_FINISH_CANCELLED ? "yes" : "it was done already");
}

int main(int argc, char **argv) {
    try {
        if (argc != 3) throw std::runtime_error("usage: session MODEL FILE");
        run(argv[1], argv[2]);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
