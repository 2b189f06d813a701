// Package scale measures what the control-plane side needs for thousands of runtimes: the time of
// one look at each, the memory of the operator, and how long a new runtime waits.
//
// The control plane is a real API server. One cheap process stands for the API servers of all
// runtimes. It answers each request after a latency, and its Deployments are ready at once. The
// operator is a process of its own, so that its memory can be measured.
//
//	go test ./test/scale -run TestScale -v -timeout 2h -runtimes 10000 -dead 1000
package scale
