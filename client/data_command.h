// `capstan data get`: downloads a data set whose files and checksums are known.
#ifndef CAPSTAN_CLIENT_DATA_COMMAND_H_
#define CAPSTAN_CLIENT_DATA_COMMAND_H_

#include <string>

#include "client/console.h"
#include "client/exit_codes.h"

namespace capstan::client {

struct DataGetOptions {
  std::string name;
  std::string folder;    // default: data/<name> below the working directory
  std::string base_url;  // http://host[:port]/path; default: the data set's own
  int timeout_seconds = 300;
};

// Files that are there with the right checksum are kept; others are downloaded to a temporary name,
// checked and then named. A file that is too long, too short or different is refused, and nothing
// of it stays. Plain http is enough: the checksums are in the program.
ExitCode DataGet(const DataGetOptions& options, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_DATA_COMMAND_H_
