#include "device/sampler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "device/controls.h"

namespace tandem::device {

using engine::Answer;

Sampler::Sampler(const Sizes& sizes, cuda::Stream& stream)
    : sizes_(sizes), stream_(stream), from_(cuda::Inputs::bytes_of<int32_t>(sizes.logit_rows)),
      copies_(size_t(sizes.logit_rows * sizes.hidden)), lanes_{Lane(sizes), Lane(sizes)},
      work_(size_t(cuda::sample_workspace_floats(sizes.logit_rows, sizes.vocab))), device_results_(size_t(sizes.logit_rows)),
      device_best_(size_t(sizes.best)), last_tokens_(size_t(sizes.sequences)) {}

Sampler::Lane::Lane(const Sizes& sizes) : inputs(sizes.sample_input_bytes), results(size_t(sizes.logit_rows)), best(size_t(sizes.best)) {}

std::vector<Answer> Sampler::run(const std::vector<Request>& requests, Forward& forward) {
  std::vector<Answer> answers;
  while (answers.size() < requests.size()) {
    const Request* first = requests.data() + answers.size();
    const size_t left = requests.size() - answers.size();
    Group group;
    while (group.rows.size() < left && add(group, first[group.rows.size()])) {
    }
    const float* logits = compute(first, int64_t(group.rows.size()), forward);
    sample(logits, group, lanes_[0]);
    std::vector<Answer> drawn = answers_of(group, lanes_[0]);
    for (size_t i = 0; i < drawn.size(); ++i) settle(first[i], logits + int64_t(i) * sizes_.vocab, drawn[i], lanes_[0]);
    std::move(drawn.begin(), drawn.end(), std::back_inserter(answers));
  }
  return answers;
}

bool Sampler::add(Group& group, const Request& request) const {
  cuda::SampleRow row;
  std::vector<cuda::LogitEdit> edits;
  if (request.input) {
    row = row_of(*request.input);
    edits = edits_of(*request.input);
  } else {
    row.given = request.given;
    row.best = int32_t(std::clamp<int64_t>(request.best, 0, sizes_.vocab));
    row.logprob_of = cuda::LogprobOf::kScaled;
    row.scale = request.scale;
  }
  const bool fits = int64_t(group.rows.size()) < sizes_.logit_rows && int64_t(group.edits.size() + edits.size()) <= sizes_.edits &&
                    group.best + row.best <= sizes_.best;
  if (!group.rows.empty() && !fits) return false;
  row.first_edit = int32_t(group.edits.size());
  row.edit_count = int32_t(edits.size());
  row.first_best = int32_t(group.best);
  row.place = request.slot;
  if (request.input && has_mask(*request.input)) {
    row.mask = int32_t(group.masked.size());
    group.masked.push_back(request.input);
  }
  group.samplable = request.input ? request.input->samplable : std::max<int64_t>(1, group.samplable);
  group.best += row.best;
  group.edits.insert(group.edits.end(), edits.begin(), edits.end());
  group.rows.push_back(row);
  return true;
}

const float* Sampler::compute(const Request* requests, int64_t count, Forward& forward) {
  // The last group's inputs have been read: sample() waits.
  std::vector<int32_t> from;
  for (int64_t i = 0; i < count; ++i) {
    const engine::HiddenRow& hidden = requests[i].hidden;
    from.push_back(hidden.copy ? -1 : int32_t(hidden.row));
    if (!hidden.copy) continue;
    float* copy = copies_.data() + i * sizes_.hidden;
    std::copy(hidden.copy, hidden.copy + sizes_.hidden, copy);
    stream_.upload(forward.picked(i), copy, size_t(sizes_.hidden) * sizeof(float));
  }
  from_.begin();
  const int32_t* placed = from_.put(from);
  from_.send(stream_);
  return forward.logits(placed, count);
}

cuda::SampleBatch Sampler::put(const Group& group, cuda::Inputs& inputs) {
  cuda::SampleBatch batch{};
  batch.ld = batch.vocab = sizes_.vocab;
  batch.rows = int64_t(group.rows.size());
  batch.samplable = group.samplable;
  batch.params = inputs.put(group.rows);
  batch.edits = inputs.put(group.edits);
  batch.edit_total = int64_t(group.edits.size());
  batch.mask_rows = int64_t(group.masked.size());
  batch.mask_words = sizes_.mask_words;
  batch.masks = inputs.put<uint32_t>(group.masked.size() * size_t(batch.mask_words), [&](uint32_t* to) {
    for (const ops::SampleInput* input : group.masked) write_mask(*input, batch.mask_words, std::exchange(to, to + batch.mask_words));
  });
  batch.work = work_.data();
  batch.work_floats = int64_t(work_.size());
  batch.best = device_best_.data();
  batch.best_total = group.best;
  batch.out = device_results_.data();
  batch.last = last_tokens_.data();
  batch.last_count = sizes_.sequences;
  cuda::choose_kernels(batch, group.rows);
  return batch;
}

void Sampler::launch(cuda::SampleBatch batch, const float* logits, Lane& lane) {
  batch.logits = logits;
  cuda::sample(batch, stream_.get());
  stream_.download(lane.results.data(), device_results_.data(), size_t(batch.rows) * sizeof(cuda::Sampled));
  if (batch.best_total > 0) stream_.download(lane.best.data(), device_best_.data(), size_t(batch.best_total) * sizeof(cuda::BestEntry));
}

void Sampler::sample(const float* logits, const Group& group, Lane& lane) {
  lane.inputs.begin();
  const cuda::SampleBatch batch = put(group, lane.inputs);
  lane.inputs.send(stream_);
  launch(batch, logits, lane);
  stream_.wait();
}

void Sampler::send(size_t index, const std::vector<Request>& requests, cuda::Stream& uploads) {
  Lane& lane = lanes_[index];
  lane.group = Group();
  lane.asking.clear();
  std::vector<int32_t> from;
  for (const Request& request : requests) {
    require(add(lane.group, request), ErrorKind::kState, "the draws of a step are more than planned");
    from.push_back(int32_t(request.hidden.row));
    if (request.input->takes) lane.asking = requests;
  }
  lane.inputs.begin();
  lane.from = lane.inputs.put(from);
  lane.batch = put(lane.group, lane.inputs);
  lane.inputs.send(uploads);
}

void Sampler::launch(size_t index, Forward& forward) {
  Lane& lane = lanes_[index];
  if (lane.batch.rows == 0) return;
  lane.logits = forward.logits(lane.from, lane.batch.rows);
  launch(lane.batch, lane.logits, lane);
}

std::vector<Answer> Sampler::answers(size_t index, bool& again) {
  Lane& lane = lanes_[index];
  std::vector<Answer> all = answers_of(lane.group, lane);
  for (size_t i = 0; i < lane.asking.size(); ++i) {
    if (settle(lane.asking[i], lane.logits + int64_t(i) * sizes_.vocab, all[i], lane)) again = true;
  }
  return all;
}

std::vector<Answer> Sampler::answers_of(const Group& group, const Lane& lane) {
  std::vector<Answer> all;
  for (size_t i = 0; i < group.rows.size(); ++i) all.push_back(answer_of(group.rows[i], int64_t(i), lane));
  return all;
}

Answer Sampler::answer_of(const cuda::SampleRow& row, int64_t index, const Lane& lane) {
  Answer answer;
  const cuda::Sampled& sampled = lane.results.data()[index];
  const bool finite = sampled.token != cuda::kNotFinite, given = row.given >= 0;
  answer.sample.token = given ? row.given : std::max(sampled.token, -1);
  answer.sample.forbidden = sampled.token == cuda::kForbidden;
  answer.sample.rank = sampled.rank;
  if (sampled.token >= 0 || given) answer.sample.logprob = sampled.logprob;
  if (!finite) return answer;
  const cuda::BestEntry* begin = lane.best.data() + row.first_best;
  std::vector<cuda::BestEntry> entries(begin, begin + sampled.best_count);
  std::sort(entries.begin(), entries.end(),
            [](const cuda::BestEntry& a, const cuda::BestEntry& b) { return a.value != b.value ? a.value > b.value : a.id < b.id; });
  for (const cuda::BestEntry& e : entries) answer.top.push_back({e.id, e.logprob});
  return answer;
}

bool Sampler::settle(const Request& request, const float* logits, Answer& answer, Lane& lane) {
  if (!request.input || !request.input->takes) return false;
  bool again = false;
  while (answer.sample.token >= 0 && !request.input->takes(answer.sample.token)) {
    Group group;
    add(group, request);
    sample(logits, group, lane);
    answer = answer_of(group.rows[0], 0, lane);
    again = true;
  }
  return again;
}

}  // namespace tandem::device
