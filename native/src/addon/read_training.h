// JavaScript facts about training, as plain structs, and back. See src/control/engine/training.ts for the shapes.
#pragma once
#include "addon/napi_setup.h"
#include "train/trainer.h"

namespace tandem::addon {

train::Options read_trainer_options(const Napi::Value& options);
train::State read_state(const Napi::Value& state);
train::Row read_row(const Napi::Value& row);
train::OptimizerStep read_optimizer_step(const Napi::Value& step);

Napi::Object to_js(Napi::Env env, const train::State& state);
Napi::Object to_js(Napi::Env env, const train::Scores& scores);
Napi::Object to_js(Napi::Env env, const train::StepOutcome& outcome);

}  // namespace tandem::addon
