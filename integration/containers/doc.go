// Package containers drives the image of relavium-serve beside PostgreSQL in containers
// that are killed and cut off. It has tests only. They pull nothing: the images are made
// from what is on the machine, in the engine that scripts/netns starts for them.
package containers
