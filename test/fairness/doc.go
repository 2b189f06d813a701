// Package fairness measures whether one loud runtime can slow down quiet ones.
//
// Three processes take part: the listener, 200 quiet runtimes (the test itself), and one flooding runtime. The flooding
// process runs at the lowest priority (nice 19). Its own TLS and HTTP work would otherwise take processor time from the
// listener and the quiet clients, and the test would measure that as delay. In production it has a machine of its own.
package fairness
