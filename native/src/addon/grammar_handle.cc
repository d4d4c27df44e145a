#include "addon/grammar_handle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>

#include "addon/background_jobs.h"
#include "addon/promise_worker.h"
#include "addon/read.h"
#include "addon/tagged.h"
#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "grammar/structural_tag.h"

namespace tandem::addon {
namespace {

using namespace grammar;

using Masks = std::shared_ptr<const SharedMasks>;

Masks vocabulary_of(const Napi::Value& value) { return unwrap<Masks>(value, kVocabularyTag, "vocabulary must come from createVocabulary"); }

class VocabularyWorker : public PromiseWorker {
 public:
  VocabularyWorker(Napi::Env env, std::vector<uint8_t> bytes, std::vector<int32_t> offsets, std::vector<int32_t> ends)
      : PromiseWorker(env), bytes_(std::move(bytes)), offsets_(std::move(offsets)), ends_(std::move(ends)) {}

 private:
  void execute() override {
    require(offsets_.size() >= 2 && offsets_[0] == 0 && size_t(offsets_.back()) == bytes_.size(), ErrorKind::kRange,
            "offsets must lead from 0 to the number of bytes");
    require(std::is_sorted(offsets_.begin(), offsets_.end()), ErrorKind::kRange, "offsets must not decrease");
    std::vector<std::string> tokens;
    for (size_t i = 0; i + 1 < offsets_.size(); ++i) tokens.emplace_back(bytes_.begin() + offsets_[i], bytes_.begin() + offsets_[i + 1]);
    masks_ = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(std::move(tokens), std::move(ends_)));
  }
  Napi::Value result(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("size", Napi::Number::New(env, double(masks_->vocabulary().size())));
    wrap(object, masks_, kVocabularyTag);
    return object;
  }

  std::vector<uint8_t> bytes_;
  std::vector<int32_t> offsets_, ends_;
  Masks masks_;
};

struct Source {
  std::string kind, text;
  std::vector<std::string> choices;
  GrammarOptions options;
  double seconds = 5;
};

// Native memory that a handle keeps, told to V8: it sees handles of a few words and would let megabytes behind them wait for a collection.
// JS thread only.
class ToldBytes {
 public:
  explicit ToldBytes(Napi::Env env) : env_(env) {}
  ToldBytes(const ToldBytes&) = delete;
  ToldBytes& operator=(const ToldBytes&) = delete;
  ~ToldBytes() { set(0); }
  void set(size_t bytes) {
    int64_t all = 0;
    if (int64_t(bytes) != told_) napi_adjust_external_memory(env_, int64_t(bytes) - told_, &all);
    all_ += int64_t(bytes) - told_;
    told_ = int64_t(bytes);
  }
  static int64_t all() { return all_; }

 private:
  inline static std::atomic<int64_t> all_{0};  // of all environments
  napi_env env_;
  int64_t told_ = 0;
};

// The matchers of one grammar and vocabulary share their masks.
struct MaskHolder {
  MaskHolder(Napi::Env env, std::shared_ptr<GrammarMasks> held) : masks(std::move(held)), told(env) {}
  std::shared_ptr<GrammarMasks> masks;
  ToldBytes told;
};
struct GrammarHolder {
  GrammarHolder(Napi::Env env, GrammarRef held) : grammar(std::move(held)), told(env) { told.set(grammar->bytes()); }
  void release() {
    grammar.reset();
    masks.clear();
    told.set(0);
  }
  GrammarRef grammar;  // null once released
  ToldBytes told;
  std::map<const SharedMasks*, std::shared_ptr<MaskHolder>> masks;
};
struct MatcherHolder {
  std::shared_ptr<Matcher> matcher;  // both null once released
  std::shared_ptr<MaskHolder> masks;
  Matcher& get() const {
    require(matcher != nullptr, ErrorKind::kState, "the matcher was released");
    return *matcher;
  }
};

Napi::Uint8Array to_bytes(Napi::Env env, const std::string& text) {
  Napi::Uint8Array out = Napi::Uint8Array::New(env, text.size());
  std::copy(text.begin(), text.end(), out.Data());
  return out;
}

int32_t whole_argument(const Napi::Value& value, const std::string& name) {
  if (!value.IsNumber()) throw Error(ErrorKind::kType, name + " must be a number");
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= INT32_MIN && number <= INT32_MAX && number == std::trunc(number))) {
    throw Error(ErrorKind::kRange, name + " must be a whole number of 32 bits");
  }
  return int32_t(number);
}

void fill_mask(const Matcher& matcher, const Napi::CallbackInfo& info) {
  napi_typedarray_type type;
  size_t length = 0;
  void* data = nullptr;
  if (!info[0].IsTypedArray() || napi_get_typedarray_info(info.Env(), info[0], &type, &length, &data, nullptr, nullptr) != napi_ok ||
      type != napi_int32_array) {
    throw Error(ErrorKind::kType, "mask must be an Int32Array");
  }
  matcher.fill_mask(static_cast<uint32_t*>(data), data ? length : 0);
}

Napi::Value completion(const Matcher& matcher, Napi::Env env) {
  std::vector<int32_t> tokens;
  if (!matcher.completion_tokens(tokens)) return env.Null();
  Napi::Int32Array out = Napi::Int32Array::New(env, tokens.size());
  std::copy(tokens.begin(), tokens.end(), out.Data());
  return out;
}

Napi::Object make_matcher(Napi::Env env, MatcherHolder made) {
  Napi::Object object = Napi::Object::New(env);
  auto holder = std::make_shared<MatcherHolder>(std::move(made));
  auto method = [&](const char* name, auto body) {
    object.Set(name, Napi::Function::New(env, [holder, body](const Napi::CallbackInfo& info) {
                 return guarded(info.Env(), [&]() -> Napi::Value { return body(holder->get(), info); });
               }));
  };
  method("advance", [](Matcher& m, const Napi::CallbackInfo& info) {
    return Napi::Boolean::New(info.Env(), m.advance(whole_argument(info[0], "token")));
  });
  method("advanceBytes", [](Matcher& m, const Napi::CallbackInfo& info) {
    std::vector<uint8_t> bytes = as_uint8_array(info[0], "bytes");
    return Napi::Boolean::New(info.Env(), m.advance_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  });
  method("canEnd", [](Matcher& m, const Napi::CallbackInfo& info) { return Napi::Boolean::New(info.Env(), m.can_end()); });
  method("complete", [](Matcher& m, const Napi::CallbackInfo& info) { return Napi::Boolean::New(info.Env(), m.complete()); });
  method("rollback", [](Matcher& m, const Napi::CallbackInfo& info) -> Napi::Value {
    int32_t count = whole_argument(info[0], "rollback: the count");
    require(count >= 0, ErrorKind::kRange, "rollback: the count must not be negative");
    m.rollback(size_t(count));
    return info.Env().Undefined();
  });
  method("forced", [](Matcher& m, const Napi::CallbackInfo& info) { return to_bytes(info.Env(), m.forced()); });
  method("completion", [](Matcher& m, const Napi::CallbackInfo& info) { return completion(m, info.Env()); });
  auto managed = [&](const char* name, auto body) {
    object.Set(name, Napi::Function::New(env, [holder, body](const Napi::CallbackInfo& info) {
                 return guarded(info.Env(), [&]() -> Napi::Value { return body(*holder, info); });
               }));
  };
  managed("fillMask", [](MatcherHolder& held, const Napi::CallbackInfo& info) {
    fill_mask(held.get(), info);
    held.masks->told.set(held.masks->masks->bytes());
    return info.Env().Undefined();
  });
  managed("clone", [](MatcherHolder& held, const Napi::CallbackInfo& info) {
    return make_matcher(info.Env(), {std::make_shared<Matcher>(held.get()), held.masks});
  });
  managed("release", [](MatcherHolder& held, const Napi::CallbackInfo& info) {
    held = {};
    return info.Env().Undefined();
  });
  return object;
}

Napi::Value create_matcher(const std::shared_ptr<GrammarHolder>& holder, const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    require(holder->grammar != nullptr, ErrorKind::kState, "the grammar was released");
    Masks shared = vocabulary_of(info[0]);
    std::shared_ptr<MaskHolder>& masks = holder->masks[shared.get()];
    if (!masks) masks = std::make_shared<MaskHolder>(info.Env(), std::make_shared<GrammarMasks>(holder->grammar, shared));
    return make_matcher(info.Env(), {std::make_shared<Matcher>(masks->masks), masks});
  });
}

size_t held_bytes(const engine::Program& program) { return program.masks->grammar().bytes() + program.masks->bytes(); }

Napi::Value constrain(const std::shared_ptr<const engine::Program>& program, const Napi::CallbackInfo& info) {
  Napi::Object options = read_object(info[0], "options");
  int64_t most = read_int(options, "maxTokens");
  require(most >= 1, ErrorKind::kRange, "options.maxTokens must be at least 1");
  auto constraint = std::make_shared<engine::Constraint>(program, read_int32_array(options, "stopIds"), most, read_bool(options, "jumps"));
  Napi::Object object = Napi::Object::New(info.Env());
  wrap(object, constraint, kConstraintTag);
  // About what its matcher keeps to go back.
  auto told = std::make_shared<ToldBytes>(info.Env());
  told->set(size_t(64) << 10);
  auto method = [&](const char* name, auto body) {
    object.Set(name, Napi::Function::New(info.Env(), [constraint, told, body](const Napi::CallbackInfo& call) {
                 return guarded(call.Env(), [&]() -> Napi::Value { return body(*constraint, call); });
               }));
  };
  method("take", [](engine::Constraint& c, const Napi::CallbackInfo& call) -> Napi::Value {
    std::vector<int32_t> tokens = as_int32_array(call[0], "tokens");
    for (size_t i = 0; i < tokens.size(); ++i) c.take(int64_t(i), tokens[i]);
    return call.Env().Undefined();
  });
  method("forced", [](engine::Constraint& c, const Napi::CallbackInfo& call) { return to_bytes(call.Env(), c.forced()); });
  method("jump", [](engine::Constraint& c, const Napi::CallbackInfo& call) {
    return Napi::Number::New(call.Env(), double(c.jump(as_int32_array(call[0], "tokens"))));
  });
  return object;
}

class CompileWorker : public BackgroundJob {
 public:
  // With a vocabulary the result is a program for the engine, without one a grammar.
  CompileWorker(Napi::Env env, Source source, Masks vocabulary, std::shared_ptr<std::atomic<bool>> cancelled)
      : BackgroundJob(env), source_(std::move(source)), vocabulary_(std::move(vocabulary)), cancelled_(std::move(cancelled)) {}

 private:
  void execute() override {
    // A job that waited for its turn may have lost its client.
    require(!cancelled_->load(), ErrorKind::kState, "the compilation was cancelled");
    Limits limits;
    limits.seconds = source_.seconds;
    Budget budget(limits, cancelled_);
    auto start = std::chrono::steady_clock::now();
    try {
      grammar_ = compile(budget);
      if (vocabulary_) program_ = engine::make_program(grammar_, vocabulary_, budget);
    } catch (const Refused& refused) {
      keyword_ = refused.keyword();
      message_ = refused.what();
    }
    micros_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  GrammarRef compile(Budget& budget) const {
    const GrammarOptions& options = source_.options;
    if (source_.kind == "json_schema") return compile_json_schema(source_.text, options, budget);
    if (source_.kind == "json_object") return compile_json_object(options, budget);
    if (source_.kind == "regex") return compile_whole_regex(source_.text, budget);
    if (source_.kind == "choice") return compile_choice(source_.choices, budget);
    if (source_.kind == "grammar") return compile_ebnf(source_.text, budget);
    if (source_.kind == "structural_tag") return compile_structural_tag(source_.text, options, budget);
    throw Error(ErrorKind::kType, "kind is not known");
  }
  Napi::Value result(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("micros", Napi::Number::New(env, micros_));
    if (!grammar_) {
      object.Set("keyword", keyword_);
      object.Set("message", message_);
      return object;
    }
    if (program_) {
      auto told = std::make_shared<ToldBytes>(env);
      told->set(held_bytes(*program_));
      object.Set("heldBytes", Napi::Function::New(env, [program = program_, told](const Napi::CallbackInfo& info) -> Napi::Value {
                   told->set(held_bytes(*program));
                   return Napi::Number::New(info.Env(), double(held_bytes(*program)));
                 }));
      object.Set("worn", Napi::Function::New(env, [program = program_](const Napi::CallbackInfo& info) -> Napi::Value {
                   return Napi::Boolean::New(info.Env(), program->worn);
                 }));
      object.Set("constrain", Napi::Function::New(env, [program = program_](const Napi::CallbackInfo& info) {
                   return guarded(info.Env(), [&] { return constrain(program, info); });
                 }));
      return object;
    }
    auto holder = std::make_shared<GrammarHolder>(env, grammar_);
    object.Set("bytes", Napi::Number::New(env, double(grammar_->bytes())));
    object.Set("empty", Napi::Boolean::New(env, grammar_->empty()));
    object.Set("createMatcher",
               Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) { return create_matcher(holder, info); }));
    object.Set("release", Napi::Function::New(env, [holder](const Napi::CallbackInfo& info) -> Napi::Value {
                 holder->release();
                 return info.Env().Undefined();
               }));
    return object;
  }

  Source source_;
  Masks vocabulary_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  GrammarRef grammar_;
  std::shared_ptr<const engine::Program> program_;
  std::string keyword_, message_;
  double micros_ = 0;
};

Source read_source(const Napi::Value& value, const Napi::Value& settings) {
  Napi::Object source = read_object(value, "source"), options = read_object(settings, "options");
  Source out;
  out.kind = read_string(source, "kind");
  if (out.kind == "choice") {
    read_array(read_property(source, "choices"), "choices", 1'000'000, [&](const Napi::Value& item, uint32_t) {
      if (!item.IsString()) throw Error(ErrorKind::kType, "choices must be strings");
      out.choices.push_back(item.As<Napi::String>().Utf8Value());
    });
  } else if (out.kind != "json_object") {
    out.text = read_string(source, "text");
  }
  std::string mode = read_string(options, "mode");
  require(mode == "accept" || mode == "generate", ErrorKind::kType, "mode must be \"accept\" or \"generate\"");
  out.options.mode = mode == "accept" ? Mode::kAccept : Mode::kGenerate;
  out.options.assert_formats = read_bool(options, "assertFormats");
  out.options.draft7 = read_bool(options, "draft7");
  out.options.any_space = read_bool(options, "anySpace");
  out.options.space = read_string(options, "space");
  out.options.only_declared = read_bool(options, "onlyDeclared");
  out.seconds = read_number(options, "seconds");
  require(out.seconds > 0 && out.seconds <= 600, ErrorKind::kRange, "seconds must lie between 0 and 600");
  return out;
}

}  // namespace

Napi::Value create_vocabulary(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return (new VocabularyWorker(info.Env(), as_uint8_array(info[0], "bytes"), as_int32_array(info[1], "offsets"),
                                 as_int32_array(info[2], "endTokens")))
        ->start();
  });
}

namespace {

Napi::Value start_compilation(const Napi::CallbackInfo& info, Masks vocabulary) {
  auto cancelled = std::make_shared<std::atomic<bool>>(false);
  auto job = std::make_unique<CompileWorker>(info.Env(), read_source(info[0], info[1]), std::move(vocabulary), cancelled);
  Napi::Object out = Napi::Object::New(info.Env());
  out.Set("cancel", Napi::Function::New(info.Env(), [cancelled](const Napi::CallbackInfo& call) -> Napi::Value {
            cancelled->store(true);
            return call.Env().Undefined();
          }));
  out.Set("result", BackgroundJob::start(compile_pool(), std::move(job)));
  return out;
}

}  // namespace

Napi::Value compile_grammar(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value { return start_compilation(info, nullptr); });
}

Napi::Value compile_program(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value { return start_compilation(info, vocabulary_of(info[2])); });
}

Napi::Value grammar_bytes(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), double(ToldBytes::all())); }

std::shared_ptr<engine::Constraint> constraint_of(const Napi::Value& value) {
  return unwrap<std::shared_ptr<engine::Constraint>>(value, kConstraintTag, "constraint must come from a program's constrain");
}

}  // namespace tandem::addon
