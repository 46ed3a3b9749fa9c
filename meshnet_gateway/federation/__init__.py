"""Which of the federation's Peers gets a request, and how it is kept from running in circles."""
