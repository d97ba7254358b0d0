// The texts of `capstan top`, `node describe` and `shards`. Pure text.
#ifndef CAPSTAN_CLIENT_TEXT_TOP_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_TOP_TEXT_H_

#include <string>
#include <vector>

#include "capstan/job/v1/admin_service.pb.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct TopView {
  bool nodes = true;
  bool shards = true;
  bool jobs = true;
  int width = 0;  // as in TextTable
};

// One line about the cluster, then those tables of `view` that have rows. `jobs`: the jobs that
// have not ended.
std::string TopText(const job::v1::ListNodesResponse& nodes, const std::vector<job::v1::Job>& jobs,
                    const TopView& view);
// The same as one object with "cluster", "nodes" and "jobs", which contain their shards.
std::string TopJson(const job::v1::ListNodesResponse& nodes, const std::vector<job::v1::Job>& jobs);

// Where the shards of `jobs` are, and what they do. `wide`: with addresses. Shares of a job's traffic are of
// the lineage at hand.
std::string ShardsText(const std::vector<job::v1::Job>& jobs, bool wide, int width);
std::string ShardsJson(const std::vector<job::v1::Job>& jobs);

std::string NodeText(const job::v1::NodeInfo& node);

// "21.4/139.8 GiB", "188 MiB": powers of 1024.
std::string BytesText(double bytes);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_TOP_TEXT_H_
