// Package manifest keeps the objects of modules in the runtimes.
package manifest
