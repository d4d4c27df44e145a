// The JavaScript side of structured output: vocabularies, compilation, matchers.
#pragma once
#include <memory>

#include "addon/napi_setup.h"
#include "engine/constraint.h"

namespace tandem::addon {

// createVocabulary(bytes, offsets, endTokens) -> Promise<NativeVocabulary>
Napi::Value create_vocabulary(const Napi::CallbackInfo& info);
// compileGrammar(source, options) -> {result: Promise<NativeGrammar | {keyword, message}>, cancel()}
Napi::Value compile_grammar(const Napi::CallbackInfo& info);
// compileProgram(source, options, vocabulary) -> the same, with a NativeProgram instead of a NativeGrammar
Napi::Value compile_program(const Napi::CallbackInfo& info);
// grammarBytes() -> what the handles of this file hold
Napi::Value grammar_bytes(const Napi::CallbackInfo& info);
// What a program's constrain() made; throws Error(kType) for anything else.
std::shared_ptr<engine::Constraint> constraint_of(const Napi::Value& value);

}  // namespace tandem::addon
