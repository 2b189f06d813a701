// Package kyma keeps the catalog, the modules and the status of runtimes.
package kyma
