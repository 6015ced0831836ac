// Package console is the web page where a person sees what waits, decides it,
// and looks at runs. Pages are rendered here and work without JavaScript; a
// small script keeps them current.
//
// Its one invariant: nothing changes but by a form that this console gave to
// somebody who logged in, sent from the console's own origin. All that a
// workflow, a caller or a model wrote is shown as inert text.
package console
