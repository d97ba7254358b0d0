// A link to a job, #/job/ID, is no part of what a browser sends. The form takes it along: the answer
// leads to the page, and the browser keeps the end of the address on the way.
'use strict';

for (const form of document.forms) form.action += location.hash;
