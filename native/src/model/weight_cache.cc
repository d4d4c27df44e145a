#include "model/weight_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/buffer.h"
#include "base/file.h"
#include "base/hash.h"

namespace tandem::model {
namespace {

constexpr uint64_t kMagic = 0x31514d44'4e415401ull;
constexpr int64_t kAlign = 64;
// One claim of reading and hashing. The hash of a matrix is that of its pieces' hashes.
constexpr int64_t kPiece = int64_t(4) << 20;

struct Record {
  int64_t rows = 0, columns = 0, panel = 0, format = 0, bytes = 0;
  uint64_t data_hash = 0, unused = 0, own_hash = 0;

  uint64_t hash() const { return hash_bytes(reinterpret_cast<const uint8_t*>(this), offsetof(Record, own_hash)); }
};
static_assert(sizeof(Record) == 64);

std::vector<uint8_t> header_of(const std::string& key) {
  std::vector<uint8_t> header(size_t(round_up(16 + int64_t(key.size()), kAlign)));
  uint64_t words[2] = {kMagic, key.size()};
  std::memcpy(header.data(), words, 16);
  std::memcpy(header.data() + 16, key.data(), key.size());
  return header;
}

bool write_exactly(int file, const void* data, int64_t bytes) {
  auto* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    ssize_t put = write(file, from, size_t(bytes));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    from += put;
    bytes -= put;
  }
  return true;
}

uint64_t combined(const std::vector<uint64_t>& hashes) {
  return hash_bytes(reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size() * sizeof(uint64_t));
}

uint64_t hash_pieces(const uint8_t* data, int64_t bytes) {
  std::vector<uint64_t> hashes;
  for (int64_t at = 0; at < bytes; at += kPiece) hashes.push_back(hash_bytes(data + at, size_t(std::min(kPiece, bytes - at))));
  return combined(hashes);
}

bool write_matrix(int file, const ops::QuantisedMatrix& matrix) {
  Record record{matrix.rows(), matrix.columns(), matrix.panel(), int64_t(matrix.format(0)), int64_t(matrix.bytes())};
  record.data_hash = hash_pieces(matrix.panel_data(0), record.bytes);
  record.own_hash = record.hash();
  return write_exactly(file, &record, sizeof record) && write_exactly(file, matrix.panel_data(0), record.bytes);
}

// A rename is durable once the folder is.
bool sync_folder(const std::string& path) {
  size_t slash = path.rfind('/');
  int folder = open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (folder < 0) return false;
  bool ok = fsync(folder) == 0;
  close(folder);
  return ok;
}

}  // namespace

CacheReader::CacheReader(const CachePlace& place, ThreadPool& pool) : pool_(pool) {
  file_ = open(place.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  struct stat info;
  if (file_ < 0 || fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) return;
  size_ = int64_t(info.st_size);
  std::vector<uint8_t> wanted = header_of(place.key), found(wanted.size());
  good_ = size_ >= int64_t(wanted.size()) && read_exactly(file_, 0, int64_t(found.size()), found.data()) && found == wanted;
  at_ = int64_t(wanted.size());
}

CacheReader::~CacheReader() {
  if (file_ >= 0) close(file_);
}

std::optional<ops::QuantisedMatrix> CacheReader::next(int64_t panel, int64_t rows, int64_t columns, ops::QuantFormat format) {
  Record record;
  good_ = good_ && size_ - at_ >= int64_t(sizeof record) && read_exactly(file_, at_, sizeof record, &record) &&
          record.own_hash == record.hash() && record.rows == rows && record.columns == columns && record.panel == panel &&
          record.format == int64_t(format);
  if (!good_) return {};
  int64_t begin = at_ + int64_t(sizeof record);
  ops::QuantisedMatrix matrix(panel, rows, columns, format, [&](uint8_t* data, int64_t bytes) {
    if (bytes != record.bytes || bytes > size_ - begin) return false;
    std::vector<uint64_t> hashes(size_t((bytes + kPiece - 1) / kPiece));
    std::atomic<bool> ok{true};
    pool_.run(int64_t(hashes.size()), [&](int64_t i) {
      int64_t first = i * kPiece, count = std::min(kPiece, bytes - first);
      if (!read_exactly(file_, begin + first, count, data + first)) ok = false;
      hashes[size_t(i)] = hash_bytes(data + first, size_t(count));
    });
    return ok && combined(hashes) == record.data_hash;
  });
  good_ = matrix.bytes() > 0;
  if (!good_) return {};
  at_ = begin + record.bytes;
  return matrix;
}

bool CacheReader::finished() const { return good_ && at_ == size_; }

std::optional<std::string> write_cache(const CachePlace& place, const std::vector<const ops::QuantisedMatrix*>& matrices) {
  // What lies there is wrong; its room may be needed.
  unlink(place.path.c_str());
  // A name of its own, readable by its owner alone: whoever writes the same file at the same time does not meet it.
  const std::string suffix = ".partial";
  std::string temporary = place.path + ".XXXXXX" + suffix;
  int file = mkostemps(temporary.data(), int(suffix.size()), O_CLOEXEC);
  if (file < 0) return std::string("cannot create the file: ") + std::strerror(errno);
  std::vector<uint8_t> header = header_of(place.key);
  bool ok = write_exactly(file, header.data(), int64_t(header.size()));
  for (size_t i = 0; ok && i < matrices.size(); ++i) ok = write_matrix(file, *matrices[i]);
  ok = ok && fsync(file) == 0;
  int error = errno;
  ok = close(file) == 0 && ok;
  if (ok && rename(temporary.c_str(), place.path.c_str()) == 0 && sync_folder(place.path)) return {};
  if (ok) error = errno;
  unlink(temporary.c_str());
  return std::string("cannot write the file: ") + std::strerror(error);
}

}  // namespace tandem::model
