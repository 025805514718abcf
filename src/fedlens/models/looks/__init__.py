"""One look at images: the bounded statistics that units send once, and generators that are fitted to their noisy mean.

psi        what one unit sends: blocks of stated weight, of norm 1 at most
statistics the readable blocks: picture, texture, intensity, spectrum, direction
embedding  the block for generators: Fourier features of random convolutions
moments    the same for tiny epsilons and machines without a GPU: means and covariances of low frequencies
shapes     images drawn by a rule, which stand in for public ones wherever a scale must be chosen
room       how much memory all that takes
fitting    a generator whose mean embedding is the released one
"""
