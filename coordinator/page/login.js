// Browsers do not send the end of an address, such as #/job/ID. The form keeps it: the answer leads
// to the page, and the browser adds the end of the form's address again.
'use strict';

for (const form of document.forms) form.action += location.hash;
