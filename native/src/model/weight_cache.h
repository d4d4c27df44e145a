// The quantised matrices of a model in one file, so that they are made once. A file is written whole: to a temporary one beside it
// (PATH.*.partial), synced, renamed. It is believed only where its key, every size and every hash are right; anything else is as if there were none.
//
//   magic (8 bytes), length of the key (8), the key, padding to 64; then for each matrix in the order of loading a record of 64 bytes
//   (rows, columns, outputs per panel, format, bytes, hash of the panels, 0, hash of the record so far) and its panels.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/quantised_matrix.h"

namespace tandem::model {

struct CachePlace {
  std::string path;
  std::string key;  // names the model's content, the format and whatever else decides the bytes
};

class CacheReader {
 public:
  CacheReader(const CachePlace& place, ThreadPool& pool);
  ~CacheReader();
  CacheReader(const CacheReader&) = delete;
  CacheReader& operator=(const CacheReader&) = delete;

  // The next matrix, which must have this shape and format throughout; nothing once something was wrong.
  std::optional<ops::QuantisedMatrix> next(int64_t panel, int64_t rows, int64_t columns, ops::QuantFormat format);
  // Whether all was right and nothing is left.
  bool finished() const;

 private:
  int file_ = -1;
  int64_t at_ = 0, size_ = 0;
  bool good_ = false;
  ThreadPool& pool_;
};

// Replaces the file, which is taken to be wrong. Returns what went wrong, or nothing; then no half-written file is left behind.
std::optional<std::string> write_cache(const CachePlace& place, const std::vector<const ops::QuantisedMatrix*>& matrices);

}  // namespace tandem::model
