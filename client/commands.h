// The sub-commands, one source file per subject. Each function adds its commands to `parent` (the
// program, or `capstan job`) and leaves what is to be done in `slot`; see command.h.
#ifndef CAPSTAN_CLIENT_COMMANDS_H_
#define CAPSTAN_CLIENT_COMMANDS_H_

#include "client/command.h"
#include "client/job_source.h"

namespace capstan::client {

// FILE, --example NAME and --set KEY=VALUE.
void AddJobSource(Command command, JobSource& source);

void AddRun(Command parent, Action& slot);         // run, clean
void AddValidate(Command parent, Action& slot);    // validate
void AddData(Command parent, Action& slot);        // data get
void AddCerts(Command parent, Action& slot);       // certs init, certs issue
void AddContexts(Command parent, Action& slot);    // context, login
void AddSubmit(Command parent, Action& slot);      // submit
void AddList(Command parent, Action& slot);        // list
void AddDescribe(Command parent, Action& slot);    // describe
void AddWatch(Command parent, Action& slot);       // watch, wait
void AddLogs(Command parent, Action& slot);        // logs
void AddMetrics(Command parent, Action& slot);     // metrics
void AddEvents(Command parent, Action& slot);      // events
void AddControl(Command parent, Action& slot);     // cancel, suspend, resume, retry, update
void AddVerify(Command parent, Action& slot);      // verify
void AddCheckpoint(Command parent, Action& slot);  // checkpoint and what is below it
void AddAdmin(Command parent, Action& slot);       // node, healthcheck, log-level
void AddDoctor(Command parent, Action& slot);      // doctor
void AddTop(Command parent, Action& slot);         // top, shards
void AddPage(Command parent, Action& slot);        // page
void AddBackup(Command parent, Action& slot);      // backup, restore

// Of `checkpoint`: export, download, delete.
void AddCheckpointFiles(Command group, Action& slot);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_H_
