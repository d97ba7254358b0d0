// The coordinator without its server, on journals that fail. It tells nobody what is not durable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "coordinator/coordinator.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

node::v1::Register WorkerW0() {
  node::v1::Register reg;
  reg.set_name("w0");
  reg.set_role(common::v1::ROLE_WORKER);
  reg.set_host("host-w0");
  reg.add_devices()->set_name("cpu");
  return reg;
}

// Nothing is told that a crash could undo.
TEST(JournalTest, WhatIsNotDurableIsNotTold) {
  class BrokenJournal final : public core::Journal {
   public:
    absl::Status Append(const core::Record&) override { return absl::OkStatus(); }
    absl::Status Commit() override { return absl::UnavailableError("the disk is gone"); }
  };
  class Node final : public NodeStream {
   public:
    void Send(const node::v1::ConnectResponse&) override { ++sent; }
    void Close(const absl::Status&) override {}
    int sent = 0;
  };
  BrokenJournal journal;
  Node node;
  std::promise<absl::Status> told;
  int fatal = 0;
  Coordinator::Options options;
  options.core.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
  options.core.resolve = [](const job::v1::JobSpec&, const common::v1::DatasetInfo&,
                            const std::string&, const std::string&) {
    return absl::StatusOr<job::v1::ResolvedSpec>(absl::InternalError("not asked for"));
  };
  options.journal = &journal;
  options.on_fatal = [&](const absl::Status&) { ++fatal; };
  Coordinator coordinator(std::move(options));
  coordinator.Post([&] {
    job::v1::JobSpec spec;
    spec.set_name("a");
    coordinator.Connect({.reg = WorkerW0()}, &node);
    coordinator.Submit("r", spec, {}, {},
                       [&](const core::Reply& reply) { told.set_value(reply.status); });
  });
  EXPECT_TRUE(absl::IsUnavailable(told.get_future().get()));
  coordinator.Stop();
  EXPECT_EQ(node.sent, 0);
  EXPECT_EQ(fatal, 1);
}

// A full disk ends nobody: effects that are not durable are held back, reads are answered, and the
// held effects are told once there is room.
TEST(JournalTest, AFullDiskHoldsBackWhatIsNotDurableAndEndsNobody) {
  class FullJournal final : public core::Journal {
   public:
    absl::Status Append(const core::Record&) override {
      ++waiting;
      return absl::OkStatus();
    }
    absl::Status Commit() override {
      if (full && waiting > 0) return absl::ResourceExhaustedError("no space left");
      waiting = 0;
      return absl::OkStatus();
    }
    bool low() override { return full; }
    bool full = false;  // strand only
    int waiting = 0;
  };
  class Node final : public NodeStream {
   public:
    void Send(const node::v1::ConnectResponse&) override {
      if (++sent == 1) first.set_value();
    }
    void Close(const absl::Status&) override {}
    std::promise<void> first;
    int sent = 0;
  };
  FullJournal journal;
  Node node;
  Coordinator::Options options;
  options.core.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
  options.core.resolve = [](const job::v1::JobSpec&, const common::v1::DatasetInfo&,
                            const std::string&, const std::string&) {
    return absl::StatusOr<job::v1::ResolvedSpec>(absl::InternalError("not asked for"));
  };
  options.journal = &journal;
  options.on_fatal = [](const absl::Status& status) { ADD_FAILURE() << status; };
  Coordinator coordinator(std::move(options));
  const auto submit = [&](const std::string& name) {
    std::promise<absl::Status> told;
    coordinator.Post([&] {
      job::v1::JobSpec spec;
      spec.set_name(name);
      coordinator.Submit(name, spec, {}, {},
                         [&](const core::Reply& reply) { told.set_value(reply.status); });
    });
    return told.get_future().get();
  };
  const auto jobs = [&] {
    std::promise<size_t> count;
    coordinator.PostRead([&] { count.set_value(coordinator.core().ListJobs(10, {}).size()); });
    return count.get_future().get();
  };
  EXPECT_TRUE(submit("before").ok());
  std::vector<bool> told;  // strand only
  std::promise<void> full_told, room_told;
  coordinator.Post([&] {
    coordinator.ListenForDisk([&](bool full) {
      told.push_back(full);
      if (told.size() == 2) full_told.set_value();
      if (told.size() == 3) room_told.set_value();
    });
    journal.full = true;
    coordinator.Connect({.reg = WorkerW0()},
                        &node);  // its number must be durable before it is told
  });
  full_told.get_future().wait();
  const absl::Status refused = submit("meanwhile");
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is full: running jobs continue"));
  EXPECT_EQ(jobs(), 1u);
  EXPECT_EQ(node.sent, 0);
  coordinator.Post([&] { journal.full = false; });
  node.first.get_future().wait();  // the commit is retried by itself
  std::promise<void> asked;
  coordinator.Post([&] {
    coordinator.Disconnect(1, false);  // the node belongs to this test and ends with it
    asked.set_value();
  });
  asked.get_future().wait();
  absl::Status again = submit("after");
  for (const absl::Time limit = absl::Now() + absl::Seconds(30);
       !again.ok() && absl::Now() < limit;) {
    again = submit("after");  // the listener is told within a second
  }
  EXPECT_TRUE(again.ok()) << again;
  room_told.get_future().wait();
  coordinator.Stop();
  EXPECT_THAT(told, ElementsAre(false, true, false));
  EXPECT_GE(node.sent, 1);  // its number, and perhaps a probe for the waiting job
}

}  // namespace
}  // namespace capstan::coordinator
