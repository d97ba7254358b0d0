// MXNet's RecordIO files with images, as its im2rec writes them.
//
//   file:    records one after another, each at an offset that is a multiple of 4
//   record:  parts; one part, or 1, then any number of 2, then 3
//   part:    uint32 0xced7230a; uint32 kind << 29 | length; `length` bytes; zeros up to a multiple
//            of 4. Kind 0: the whole record, 1: its first part, 2: a middle one, 3: the last. The
//            data of a record are those of its parts, with the 4 bytes 0a 23 d7 ce between two
//   data:    uint32 flag; float32 label; uint64 id; uint64 id2; `flag` more float32 labels, which
//            replace the first; the image, JPEG or PNG
//   index:   a line for each record: key, tab, offset
//
// All numbers are little-endian; an index has decimal ones. Errors name the file and the offset of
// the record, or the line of the index, and carry a reason (failure.h).
// Sources: dmlc-core, include/dmlc/recordio.h and src/recordio.cc; MXNet, python/mxnet/recordio.py,
// IRHeader, pack, MXIndexedRecordIO.
// Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_RECORD_IO_H_
#define CAPSTAN_GPU_WORKER_DATA_RECORD_IO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

inline constexpr int64_t kImageHeaderBytes = 28;  // with one label more

struct IoRecord {
  std::vector<uint8_t> data;  // its data, or their beginning
  int64_t size = 0;           // bytes of all its data
  int64_t next = 0;           // offset behind it
};

// Reads the record at `offset` and keeps at most `keep_bytes` of its data. Each length is compared
// with the file before anything is allocated. DataLoss, DataMissing: no record is there, or it does
// not end in the file. InvalidArgument, InvalidSpec: more data than kMaxPictureFileBytes
// (picture.h) and a header. Throws bad_alloc.
absl::StatusOr<IoRecord> ReadRecord(const ByteSource& file, int64_t offset, int64_t keep_bytes);

struct ImageHeader {
  int32_t label = 0;
  int64_t image = 0;  // where the image begins in the data
};

// Reads the beginning of a record's data. Its messages begin with the label or the header, not with
// the file. DataLoss, DataMissing: too short. InvalidArgument, InvalidSpec: more than one label, or
// one that is not a whole number below `num_classes`.
absl::StatusOr<ImageHeader> ReadImageHeader(const IoRecord& record, int64_t num_classes);

struct RecordOptions {
  int64_t num_classes = 10;
  int64_t memory_limit_bytes = int64_t{4} << 30;  // 12 bytes for a record: offset and label
};

// The offsets of records in a file of `file_bytes`, as an index has them. The order of samples is
// that of its lines. DataLoss, DataMissing: a line that is none, an offset that cannot be.
// InvalidArgument, InvalidSpec: no line, or too much memory. Throws bad_alloc.
absl::StatusOr<std::vector<int64_t>> ReadRecordIndex(ByteSource& index, int64_t file_bytes,
                                                     const RecordOptions& options);

// The offsets of the records of a file without an index. Checks all labels. Reads only the
// headers. Errors of ReadRecord and ReadImageHeader; InvalidSpec: no record, or too much memory.
// Throws bad_alloc.
absl::StatusOr<std::vector<int64_t>> ScanRecords(const ByteSource& file,
                                                 const RecordOptions& options);

// "<file>: record at offset 8".
std::string RecordPlace(const ByteSource& file, int64_t offset);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_RECORD_IO_H_
